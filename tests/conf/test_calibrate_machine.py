"""smartgen calibrate without files: from timings to cards, and what it refuses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import smartgen
from smartgen.calibrate import machine
from smartgen.calibrate.machine import found_in, pair_slopes
from smartgen.emu.measure import Measured, Sizes, Timings
from smartgen.metrics.store import read_run

Command = Callable[..., Any]

CONF = Path(smartgen.__file__).parent / "conf"

TURNS = range(1, 22)
"""Of 21 values, 5 % lie below the second, half below the eleventh, 95 % below the twentieth."""


def at_rates(amount: int, gbytes_per_s: float) -> Timings:
    """Repeats at 1, 2, ... 21 times that rate, in no order."""
    rates = [gbytes_per_s * turn for turn in TURNS]
    seconds = tuple(amount / (rate * 1e9) for rate in rates[::2] + rates[1::2])
    return Timings(amount=amount, seconds=seconds)


def lasting(microseconds: Sequence[float], amount: int = 1) -> Timings:
    return Timings(amount=amount, seconds=tuple(one * 1e-6 for one in microseconds))


def chains(num_pairs: int) -> Timings:
    """Chains of pairs that take 0.1, 0.2, ... 2.1 us each, on top of what does not grow."""
    seconds = tuple((90 + turn**2 + 0.1 * turn * num_pairs) * 1e-6 for turn in TURNS)
    return Timings(amount=num_pairs, seconds=seconds)


MEASURED = Measured(
    machine="Some CPU, 4 cores",
    day="2026-01-31",
    sizes=Sizes(),
    gather=at_rates(10**6, 0.5),
    load=at_rates(10**6, 0.25),
    dense_load=at_rates(10**7, 1.0),
    offload=at_rates(10**7, 0.75),
    stream=at_rates(10**7, 0.125),
    round_trip=lasting([7.0, 9.0, 500.0]),
    acknowledged=lasting([80.0, 90.0, 100.0]),
    call=lasting([59.0] * 19 + [1000.0]),
    pairs=tuple(chains(number) for number in (100, 300, 1000)),
)

WRITTEN = {
    "host": {
        "load_gbytes_per_s": (2.75, 0.5, 5.0),
        "dense_load_gbytes_per_s": (11.0, 2.0, 20.0),
        "gather_gbytes_per_s": (5.5, 1.0, 10.0),
        "offload_gbytes_per_s": (8.25, 1.5, 15.0),
    },
    "network": {"gbps": (11.0, 2.0, 20.0), "pair_us": (1.1, 0.2, 2.0)},
}
"""Median, 5 and 95 % of what was timed above."""


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Sizes]:
    """Nothing is measured, the above is found; lists for what it was asked."""
    asked: list[Sizes] = []

    def measure(sizes: Sizes, tell: Callable[[str], None]) -> Measured:
        asked.append(sizes)
        tell("nothing")
        return MEASURED

    monkeypatch.setattr(machine, "measure", measure)
    return asked


def test_a_value_is_the_median_of_its_repeats_between_their_5_and_95_percent() -> None:
    found = {one.name: one for one in found_in(MEASURED)}
    for card, fields in WRITTEN.items():
        for field, spread in fields.items():
            one = found[f"{card}.{field}"]
            assert (one.value, one.low, one.high) == pytest.approx(spread, rel=1e-9), field
            assert one.times == 21


def test_a_pair_costs_the_slope_and_not_what_a_chain_costs_whatever_its_length() -> None:
    assert pair_slopes(MEASURED.pairs) * 1e6 == pytest.approx([0.1 * turn for turn in TURNS])


def test_a_call_is_told_without_the_round_trip_that_the_network_has() -> None:
    found = {one.name: one for one in found_in(MEASURED)}
    assert found["network.rtt_us"].value == pytest.approx(9.0)
    assert found["host.rpc_us"].value == pytest.approx(50.0)
    assert found["host.rpc_us"].times == 20


def test_what_costs_less_than_the_noise_costs_nothing_and_its_spread_is_told_as_it_is() -> None:
    shrinking = replace(
        MEASURED,
        call=lasting([5.0] * 3),
        pairs=(lasting([99.0], amount=1), lasting([98.0], amount=2)),
    )
    found = {one.name: one for one in found_in(shrinking)}
    assert (found["host.rpc_us"].value, found["network.pair_us"].value) == (0.0, 0.0)
    assert found["host.rpc_us"].low == pytest.approx(-4.0)
    assert found["network.pair_us"].low == pytest.approx(-1.0)


def test_it_prints_every_constant_with_its_spread_and_lines_for_cards(
    command: Command, measured: list[Sizes], tree: Callable[[], list[str]]
) -> None:
    told = command("calibrate")
    assert (told.code, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0] == "measured on Some CPU, 4 cores, 2026-01-31"
    cells = [line.split()[:5] for line in lines]
    assert ["network.gbps", "11.00", "2.00", "20.00", "21"] in cells
    assert ["host.rpc_us", "50.0", "50.0", "97.1", "20"] in cells
    assert lines[lines.index("# conf/network") + 1].startswith("gbps: 11.00 ")
    assert measured == [Sizes()]
    assert tree() == []


def test_both_cards_can_be_run_and_each_number_tells_where_it_is_from(
    command: Command, measured: list[Sizes], tiny_run: tuple[str, ...], tmp_path: Path
) -> None:
    told = command("calibrate", "name=laptop", "-o", "made/mine")
    assert (told.code, told.err) == (0, "")
    cards = {group: tmp_path / "made" / "mine" / group / "laptop.yaml" for group in WRITTEN}
    use = "smartgen --config-dir made/mine host=laptop network=laptop"
    assert told.out.endswith(
        f"cards: made/mine/host/laptop.yaml, made/mine/network/laptop.yaml\nuse:   {use}\n"
    )
    for group, path in cards.items():
        assert [one.name for one in path.parent.iterdir()] == ["laptop.yaml"]
        text = path.read_text(encoding="utf-8")
        assert "Some CPU, 4 cores, 2026-01-31: smartgen calibrate name=laptop -o made/m" in text
        card = yaml.safe_load(text)
        assert {field: card[field] for field in WRITTEN[group]} == {
            field: spread[0] for field, spread in WRITTEN[group].items()
        }
        numbers = [line for line in text.splitlines() if line.partition(": ")[2][:1].isdigit()]
        assert all(
            "# measured: " in line or "# guess: " in line or line.startswith("efficiency: 1.0 ")
            for line in numbers
        )

    told = command(*use.split()[1:], *tiny_run)
    assert (told.code, told.err) == (0, "")
    (run,) = (tmp_path / "results" / "runs").iterdir()
    config = read_run(run).config
    l20 = yaml.safe_load((CONF / "host" / "l20_host.yaml").read_text(encoding="utf-8"))
    assert config["host"] == {
        "_target_": "smartgen.cost.Host",
        "name": "laptop",
        **{field: spread[0] for field, spread in WRITTEN["host"].items()},
        "rpc_us": 50.0,
        "handover_ms": l20["handover_ms"],
    }
    assert config["network"]["name"] == "laptop"
    assert config["network"]["gbps"] == config["network"]["sender_gbps"] == 11.0


def test_cards_without_a_name_are_of_this_machine(
    command: Command, measured: list[Sizes], tree: Callable[[], list[str]]
) -> None:
    assert command("calibrate", "-o", "mine").code == 0
    assert [path for path in tree() if path.endswith("yaml")] == [
        "mine/host/this_machine.yaml",
        "mine/network/this_machine.yaml",
    ]


WRONG = {
    ("gbps=25",): "gbps= goes with files; without files calibrate measures this machine",
    ("name=",): "name='' must be of letters, digits, '_' and '-', and begin with a letter",
    ("name=../x",): "name='../x' must be of letters",
    ("name=l20_host",): "name=l20_host is a host card that smartgen has",
    ("name=elastic_25g", "-o", "mine"): "name=elastic_25g is a network card that smartgen has",
    ("-o", "card.yaml"): "-o card.yaml must be a folder: without files calibrate writes two cards",
    ("-o", __file__): "must be a folder: without files calibrate writes two cards",
}


@pytest.mark.parametrize(("arguments", "told"), WRONG.items(), ids=lambda value: str(value)[-40:])
def test_what_is_wrong_is_told_before_anything_is_measured(
    command: Command,
    measured: list[Sizes],
    tree: Callable[[], list[str]],
    arguments: tuple[str, ...],
    told: str,
) -> None:
    done = command("calibrate", *arguments)
    assert (done.code, done.out) == (1, "")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert (measured, tree()) == ([], [])
