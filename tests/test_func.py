"""Composing loaders with functions."""

import pickle
from typing import Any

import pytest

from trtops import errors, func


def three() -> tuple[list[int], str, None]:
    return [1], "parser", None


def one(start: int = 0) -> list[int]:
    return [start]


def test_extended_loaders_pass_values_on() -> None:
    calls: list[str] = []

    @func.extend(three)
    def keeps(numbers: list[int], parser: str, nothing: None) -> None:
        """Mine."""
        assert (parser, nothing) == ("parser", None)
        numbers.append(2)

    @func.extend(one)
    def replaces(numbers: list[int]) -> str:
        return f"{numbers}"

    @func.extend(lambda: [1, 2])
    def takes_list(numbers: list[int]) -> int:
        return len(numbers)

    @func.extend(one)
    def with_arguments(start: int, numbers: list[int]) -> tuple[int, list[int]]:
        return start, numbers

    @func.extend(lambda: calls.append("first"))
    def without_parameters() -> str:
        return "done"

    assert keeps() == ([1, 2], "parser", None)  # type: ignore[func-returns-value]
    assert replaces(5) == replaces(start=5) == "[5]"
    assert takes_list() == 2
    assert with_arguments(7) == with_arguments(start=7) == (7, [7])
    assert without_parameters() == "done" and calls == ["first"]
    assert (keeps.__name__, keeps.__doc__) == ("keeps", "Mine.")


def test_wrong_parameter_count_names_types() -> None:
    @func.extend(three)
    def load(numbers: list[int]) -> None: ...

    with pytest.raises(
        errors.ConfigError,
        match=r"load accepts 1 parameter\(s\), but needs to accept 3 .*three, which returns \(list, str, NoneType\)",
    ):
        load()


def test_constants_values_and_calls() -> None:
    constant = func.constant([1])

    assert constant() is constant()
    assert pickle.loads(pickle.dumps(constant))() == [1]
    assert func.invoke(one, 3) == [3]
    assert func.invoke_if_callable(one, 3) == ([3], True)
    assert func.invoke_if_callable("value") == ("value", False)
    assert func.value_of(one) == [0] and func.value_of(4) == 4
    assert func.make_iterable((1, 2)) == (1, 2) and func.make_iterable([1]) == ([1],)


@pytest.mark.parity
def test_extend_equals_polygraphys() -> None:
    from polygraphy import func as theirs

    def collect(extend: Any) -> list[Any]:
        @extend(three)
        def keeps(a: Any, b: Any, c: Any) -> None:
            a.append(9)

        @extend(one)
        def with_arguments(start: int, numbers: list[int]) -> tuple[int, list[int]]:
            return start, numbers

        @extend(one)
        def replaces(numbers: list[int]) -> int:
            return 4

        return [keeps(), with_arguments(1), with_arguments(start=2), replaces()]

    assert collect(func.extend) == collect(theirs.extend)
