"""`serve`: the page, status and metrics of the mirrors on one or several destinations, without copying."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from kmirror.cli.options import (
    BOOTSTRAP_ENVIRONMENT,
    HTTP_HOST,
    Call,
    destination_properties,
    file_option,
    verb,
)
from kmirror.errors import UsageError
from kmirror.words import at_time, counted, listed

if TYPE_CHECKING:
    from kmirror.web.served import ClusterStatus

#: How often changes are looked for.
_TURN_SECONDS = 1.0
_MOST_NAMED = 10


@verb(
    "serve",
    "Serve a page and metrics of mirrors without copying.\n\nWatches the stored state of one or"
    " several destinations: what their mirrors do, and whether engines run here, elsewhere or not at all. It answers as"
    " `run --http` does, needs no engine, starts no Spark, and changes nothing. A cluster that is down does not end it."
    "\n\nCtrl-C or SIGTERM stops it with exit code 0.",
    click.Option(
        ["--http"],
        metavar="[HOST:]PORT",
        required=True,
        help="Where to serve, on localhost unless HOST is given.",
    ),
    HTTP_HOST,
    click.Option(
        ["--cluster", "clusters"],
        metavar="NAME",
        multiple=True,
        help="Name of a destination in kmirror.toml. Repeatable. Default: all clusters there.",
    ),
    click.Option(
        ["--bootstrap-server"],
        metavar="HOST:PORT",
        help=f"Brokers of the only destination, comma-separated. Default: {BOOTSTRAP_ENVIRONMENT}.",
    ),
    file_option(
        "--command-config",
        "Client properties for the only destination. Default: KMIRROR_COMMAND_CONFIG.",
    ),
    click.Option(["--expect-cluster-id"], metavar="ID", help="Show the only destination only if it has this ID."),
    examples=(
        "kmirror serve --http 8080",
        "kmirror serve --http 0.0.0.0:8080 --cluster prod --cluster dr",
        "kmirror serve --http 8080 --bootstrap-server b:9092",
    ),
    destination=False,
    documents=False,
)
def serve_verb(
    call: Call,
    http: str,
    http_host: tuple[str, ...],
    clusters: tuple[str, ...],
    bootstrap_server: str | None,
    command_config: str | None,
    expect_cluster_id: str | None,
) -> int:
    from kmirror.cli.commands.copying import ServiceManager
    from kmirror.ops.run.signals import stopping
    from kmirror.ops.show.charge_keeper import ChargeKeeper
    from kmirror.web.address import Address
    from kmirror.web.http_server import serving
    from kmirror.web.watch_service import WatchService
    from kmirror.web.watched_cluster import WatchedCluster

    address = Address.parse(http)
    watched = _watched(call, clusters, bootstrap_server, command_config)
    if expect_cluster_id is not None and len(watched) > 1:
        raise UsageError("--expect-cluster-id is for one cluster", "give one --cluster")
    charge = ChargeKeeper(watched)
    seen = [WatchedCluster(name, read, expect_cluster_id, charge.take, charge.doubt) for name, read in watched.items()]
    service = WatchService(seen, charge)
    service_manager, screen = ServiceManager.of_this_process(), call.output.screen
    with stopping() as stop, serving(address, service, tuple(map(str.lower, http_host))) as listening:
        screen.line(f"watching {listed(list(watched), _MOST_NAMED)}; nothing is copied")
        screen.line(f"http://{listening} answers {_PATHS}; / is a page for people")
        with service.watching():
            known: dict[str, str | None] = dict.fromkeys(watched)
            while not stop.wait(_TURN_SECONDS):
                if service.stuck is None:
                    service_manager.report_alive(f"watching {counted(len(watched), 'cluster')}")
                for line in _changes(service.clusters, known):
                    screen.line(line)
    service_manager.report_stopping()
    return 0


_PATHS = "/healthz, /readyz, /in-charge/MIRROR, /fleet.json, /status.json, /history.json and /metrics"


def _watched(
    call: Call, clusters: Sequence[str], bootstrap_server: str | None, command_config: str | None
) -> dict[str, Callable[[], Mapping[str, str]]]:
    """Return by name what reads the client properties of each cluster; they have been read once.

    Raises:
        UsageError: no cluster is named, one is unknown, or its properties cannot be read or are invalid.
    """
    from kmirror.cluster.security.client_config import client_config
    from kmirror.config_file import load_config_file
    from kmirror.errors import KmirrorError

    names = list(dict.fromkeys(clusters))
    if names and bootstrap_server:
        raise UsageError("--bootstrap-server and --cluster exclude each other", "give one of them")
    if not names and not bootstrap_server and not os.environ.get(BOOTSTRAP_ENVIRONMENT) and not command_config:
        names = list(load_config_file().clusters)
    if len(names) > 1 and command_config is not None:
        raise UsageError("--command-config is for one cluster", "name the file of each cluster in kmirror.toml")
    found: dict[str, Callable[[], Mapping[str, str]]] = {}
    one: list[str | None] = [None]
    for name in names or one:
        read = partial(destination_properties, bootstrap_server, command_config, name, call.read_properties)
        properties = read()
        try:
            client_config(properties)
        except UsageError:
            raise
        except KmirrorError:
            pass  # a secret that cannot be read now is trouble of the cluster
        found[name or properties["bootstrap.servers"]] = read
    return found


def _changes(clusters: Sequence[ClusterStatus], known: dict[str, str | None]) -> Iterator[str]:
    """Yield a line for each cluster that cannot be read any more, for another cause, or can be read again."""
    for one in clusters:
        if one.error == known[one.name]:
            continue
        known[one.name] = one.error
        if one.error is not None:
            yield f"{at_time(one.error_since_ms or 0)} {one.name} cannot be read: {one.error}"
        elif one.as_of_ms is not None:
            yield f"{at_time(one.as_of_ms)} {one.name} is read again"
