"""What is committed in results/reference is what this program makes."""

import csv
import json
from pathlib import Path

import pytest

from smartgen.claims.claims import LIMITS, Score, all_claims
from smartgen.claims.measures import MEASURES
from smartgen.provenance import PACKAGE
from smartgen.reproduce.analysis import Analysis, Asked, Constants, analysis
from smartgen.reproduce.checks import checks
from smartgen.reproduce.figures import FIGURES

REFERENCE = PACKAGE.parent / "results" / "reference"

pytestmark = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="there is no results/reference: not a checkout"
)


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, str]]:
    with (REFERENCE / "claims.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def of() -> Analysis:
    return analysis()


def test_every_claim_stands_there_as_it_was_made(rows: dict[str, dict[str, str]]) -> None:
    results = {claim.id: claim for claim in all_claims() if claim.is_result}
    assert set(rows) == set(results)
    for name, row in rows.items():
        assert (row["set"], row["claimed"]) == (results[name].set, results[name].claimed)
        assert row["verdict"] == results[name].verdict(float(row["simulated"]))


def test_the_recursion_gives_what_the_simulator_gave(
    rows: dict[str, dict[str, str]], of: Analysis
) -> None:
    """All but Figures 5 and 15, whose selections are drawn; six digits are written."""
    values = of.values(Asked(Constants({})))
    assert len(values) == len(MEASURES) - 6
    for name, value in values.items():
        assert float(rows[name]["simulated"]) == pytest.approx(value, rel=6e-6), name


def test_another_constant_would_be_noticed(rows: dict[str, dict[str, str]], of: Analysis) -> None:
    values = of.values(Asked(Constants({"host.handover_ms": 130.0})))
    assert float(rows["C032"]["simulated"]) != pytest.approx(values["C032"], rel=1e-4)


def test_checks_stand_there_as_they_are(rows: dict[str, dict[str, str]]) -> None:
    of_claims = {check.claim: check.value for check in checks() if check.claim in rows}
    assert set(of_claims) == {"C002", "C022"}
    for name, value in of_claims.items():
        assert float(rows[name]["simulated"]) == pytest.approx(value, rel=2e-6)


def test_the_table_of_the_readme_is_that_of_the_claims(rows: dict[str, dict[str, str]]) -> None:
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    names = {
        "fit": "fitted",
        "held_out": "held out",
        "parameter_free": "follow from sizes and measured rates",
        "contradiction": "excluded by other claims",
    }
    for name, told in names.items():
        errors = [
            float(row["error"]) for row in rows.values() if row["set"] == name and row["error"]
        ]
        of = Score(tuple(errors))
        within = " | ".join(str(of.within(limit)) for limit in LIMITS)
        assert f"| {told} | {len(errors)} | {within} | {100 * of.median:.1f} % |" in readme


def test_every_figure_is_there_as_png_and_pdf_and_in_the_report() -> None:
    report = (REFERENCE / "REPORT.md").read_text(encoding="utf-8")
    for name in ("claims", "sensitivity", "adaptive", *(figure.name for figure in FIGURES)):
        assert (REFERENCE / f"{name}.png").is_file() and (REFERENCE / f"{name}.pdf").is_file()
        assert f"({name}.png)" in report


def test_what_is_said_about_misses_is_about_misses(rows: dict[str, dict[str, str]]) -> None:
    path = Path(PACKAGE, "reproduce", "reasons.csv")
    with path.open(newline="", encoding="utf-8") as file:
        told = {row["id"] for row in csv.DictReader(file)}
    missed = {name for name, row in rows.items() if row["verdict"] in ("miss", "within 20 %")}
    contradictions = {name for name, row in rows.items() if row["set"] == "contradiction"}
    assert missed <= told <= missed | contradictions


def test_the_manifest_counts_the_runs_of_every_experiment() -> None:
    manifest = json.loads((REFERENCE / "manifest.json").read_text(encoding="utf-8"))
    named = {name for figure in FIGURES for name in figure.experiments}
    assert named < set(manifest["runs"]) and all(number > 0 for number in manifest["runs"].values())
