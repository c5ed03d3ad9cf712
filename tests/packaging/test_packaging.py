"""What is installed: built from a copy of the tree, run from a fresh environment."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = ("sim", "emu", "hw", "conf")
SETUPTOOLS = int(version("setuptools").partition(".")[0])

pytestmark = pytest.mark.packaging

builds = pytest.mark.skipif(
    SETUPTOOLS < 77,
    reason=f"building without a network needs setuptools>=77 here, not {SETUPTOOLS}",
)


def ran(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees no environment but this."""
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), **environment},
    )


def built(kind: str, tree: Path, into: Path) -> subprocess.CompletedProcess[str]:
    """Build as pip does, by the hooks of the build system, but without a network."""
    code = f"from setuptools.build_meta import build_{kind} as b; print(b({str(into)!r}))"
    setuptools = str(distribution("setuptools").locate_file(""))
    return ran(sys.executable, "-c", code, cwd=tree, PYTHONPATH=setuptools)


def copy_of_the_tree(into: Path) -> Path:
    """What git archive would hold, links as links."""
    left_out = shutil.ignore_patterns(
        ".*", "__pycache__", "*.egg-info", "build", "dist", "results", "tests", "docs"
    )
    return Path(shutil.copytree(ROOT, into, symlinks=True, ignore=left_out))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from an unpacked sdist, built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("packaging")
    done = built("sdist", copy_of_the_tree(folder / "tree"), folder)
    assert done.returncode == 0, done.stderr
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    done = built("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


@builds
def test_the_wheel_holds_every_module_card_and_table_and_nothing_beside_them(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        f"smartgen/{path.relative_to(ROOT)}"
        for name in LINKS
        for path in (ROOT / name).rglob("*")
        if path.suffix in (".py", ".yaml")
    }
    wanted |= {
        str(path.relative_to(ROOT))
        for path in (ROOT / "smartgen").rglob("*.py")
        if path.relative_to(ROOT).parts[1] not in LINKS
    }
    for folder in ("calibrate/points", "claims", "reproduce"):
        tables = (ROOT / "smartgen" / folder).glob("*.csv")
        wanted |= {str(path.relative_to(ROOT)) for path in tables}
    assert "smartgen/conf/config.yaml" in wanted
    assert "smartgen/sim/backend.py" in wanted
    assert held == wanted


@builds
def test_the_installed_command_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    here = tmp_path / "empty"
    here.mkdir()
    ran(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=here)
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    done = ran(*pip, "--no-deps", "--no-index", "--no-compile", wheel, cwd=here)
    assert done.returncode == 0, done.stderr
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    others = [folder for folder in sys.path if folder.endswith("-packages")]
    (packages / "dependencies.pth").write_text("\n".join(others) + "\n", encoding="utf-8")

    where = ran(python, "-c", "import smartgen.sim; print(smartgen.sim.__file__)", cwd=here)
    assert where.stdout.startswith(str(packages)), where
    smartgen = python.with_name("smartgen")
    assert ran(smartgen, "--version", cwd=here).stdout == "smartgen 0.1.0\n"
    for backend in ("sim", "emu"):
        asked = ("model=tiny", "workload=tiny", "figures=[]", f"backend={backend}")
        done = ran(smartgen, *asked, cwd=here)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[1].startswith("smartgen ")
    assert len(list(here.glob("results/runs/*/metrics.json"))) == 2


@builds
@pytest.mark.parametrize("name", LINKS)
def test_a_tree_that_lost_its_links_does_not_build(tmp_path: Path, name: str) -> None:
    tree = copy_of_the_tree(tmp_path / "tree")
    (tree / "smartgen" / name).unlink()
    (tree / "smartgen" / name).write_text(f"../{name}", encoding="utf-8")
    done = built("wheel", tree, tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"smartgen: smartgen/{name} must be a link to ../{name}; "
        "unpack with a tool that keeps symlinks\n"
    )
    assert not list(tmp_path.glob("*.whl"))


def test_a_raw_checkout_runs_without_being_installed(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path / "tree")
    others = ":".join(folder for folder in sys.path if folder.endswith("-packages"))
    done = ran(sys.executable, "-S", "-m", "smartgen", "--version", cwd=tree, PYTHONPATH=others)
    assert (done.returncode, done.stdout) == (0, "smartgen 0.1.0\n"), done.stderr
