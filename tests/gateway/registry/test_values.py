import pytest

from gateway.registry.values import Percentage, ValueProblem, format_bytes, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("12GiB", 12 * 1024**3), ("1.5 MiB", 1572864), ("2kb", 2000), ("7", 7), (9, 9), ("3 TB", 3 * 10**12)],
)
def test_parse_bytes_reads_units(text: object, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "-1",
        -1,
        0,
        True,
        1.5,
        None,
        "1 XB",
        "1e9",
        "0.1 B",
        2**63,
        "9999999TiB",
        "9" * 5000,
        "9" * 400 + ".5",
    ],
)
def test_parse_bytes_refuses_the_rest(text: object) -> None:
    with pytest.raises(ValueProblem, match="expected a size"):
        parse_bytes(text)


def test_parse_budget_tells_auto_percent_and_size() -> None:
    assert parse_budget("auto") is None
    percent = parse_budget("80%")
    assert isinstance(percent, Percentage) and float(percent) == 80.0
    assert parse_budget("1GiB") == 1024**3
    with pytest.raises(ValueProblem, match="expected auto"):
        parse_budget("auto!")


def test_format_bytes_picks_the_unit() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 3 * 1024**3, 5 * 1024**4)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 GiB",
        "5.0 TiB",
    ]
