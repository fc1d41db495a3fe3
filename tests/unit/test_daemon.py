"""What the daemon does before it forks workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from kmirror.engine.spark.daemon import preload, without_bundled_pyspark

BUNDLED = Path(pyspark.__file__).parent / "python" / "lib"
JAR = next((Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar"))
INSTALLED = str(Path(pyspark.__file__).parent.parent)


def archives() -> list[str]:
    return [str(path) for path in (*sorted(BUNDLED.glob("*.zip")), JAR)]


def test_the_zips_of_an_installed_pyspark_and_its_jar_are_omitted() -> None:
    path = [*archives(), "/elsewhere/more.zip", "/elsewhere/one.jar", INSTALLED, "/usr/lib"]

    assert len(archives()) == 3
    assert without_bundled_pyspark(path) == ["/elsewhere/more.zip", "/elsewhere/one.jar", INSTALLED, "/usr/lib"]


def test_the_zip_of_another_pyspark_or_of_the_only_one_stays() -> None:
    others = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-src.zip", f"/spark/jars/{JAR.name}"]

    assert without_bundled_pyspark([*others, INSTALLED]) == [*others, INSTALLED]
    assert without_bundled_pyspark([*archives(), "/usr/lib"]) == [*archives(), "/usr/lib"]


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
