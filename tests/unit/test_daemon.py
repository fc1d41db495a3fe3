"""What the daemon does before it forks workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from kmirror.engine.spark.daemon import preload, without_bundled_pyspark

BUNDLED = Path(pyspark.__file__).parent / "python" / "lib"
INSTALLED = str(Path(pyspark.__file__).parent.parent)


def zips() -> list[str]:
    return [str(path) for path in sorted(BUNDLED.glob("*.zip"))]


def test_the_zip_of_an_installed_pyspark_is_omitted() -> None:
    path = [*zips(), "/elsewhere/more.zip", INSTALLED, "/usr/lib"]

    assert len(zips()) == 2
    assert without_bundled_pyspark(path) == ["/elsewhere/more.zip", INSTALLED, "/usr/lib"]


def test_the_zip_of_another_pyspark_or_of_the_only_one_stays() -> None:
    others = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-src.zip"]

    assert without_bundled_pyspark([*others, INSTALLED]) == [*others, INSTALLED]
    assert without_bundled_pyspark([*zips(), "/usr/lib"]) == [*zips(), "/usr/lib"]


def test_modules_are_imported_by_name_or_beginning_and_a_broken_one_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "preloaded"
    package.mkdir()
    for name in "__init__", "lane_one", "lane_two", "other", "lane_broken":
        (package / f"{name}.py").write_text("raise ValueError('broken')" if "broken" in name else "")
    monkeypatch.syspath_prepend(str(tmp_path))

    preload(["", "json", "preloaded.lane*"])

    loaded = {name for name in sys.modules if name.startswith("preloaded")}
    assert loaded == {"preloaded", "preloaded.lane_one", "preloaded.lane_two"}
    assert "ValueError: broken" in capsys.readouterr().err
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
