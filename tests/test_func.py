"""Composing loaders with functions."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from trtops import errors, func


def three() -> tuple[list[int], str, None]:
    return [1], "parser", None


def one(start: int = 0) -> list[int]:
    return [start]


def test_returned_values_are_passed_on() -> None:
    @func.extend(three)
    def load(numbers: list[int], parser: str, nothing: None) -> None:
        assert (parser, nothing) == ("parser", None)
        numbers.append(2)

    assert load() == ([1, 2], "parser", None)  # type: ignore[func-returns-value]


def test_a_returned_value_replaces_the_input() -> None:
    @func.extend(one)
    def load(numbers: list[int]) -> str:
        return f"{numbers}"

    assert load(5) == load(start=5) == "[5]"


def test_a_list_is_one_value() -> None:
    @func.extend(lambda: [1, 2])
    def load(numbers: list[int]) -> int:
        return len(numbers)

    assert load() == 2


def test_extra_parameters_get_the_arguments() -> None:
    @func.extend(one)
    def load(start: int, numbers: list[int]) -> tuple[int, list[int]]:
        return start, numbers

    assert load(7) == load(start=7) == (7, [7])


def test_no_parameters_for_a_loader_without_result() -> None:
    calls = []

    @func.extend(lambda: calls.append("first"))
    def load() -> str:
        return "done"

    assert load() == "done" and calls == ["first"]


def test_name_and_docstring_are_kept() -> None:
    @func.extend(one)
    def load(numbers: list[int]) -> None:
        """Mine."""

    assert (load.__name__, load.__doc__) == ("load", "Mine.")


def test_wrong_parameter_count_names_types() -> None:
    @func.extend(three)
    def load(numbers: list[int]) -> None: ...

    with pytest.raises(
        errors.ConfigError, match=r"load takes 1 arguments; expected 3.*three returns \(list, str, NoneType\)"
    ):
        load()


def test_variadic_functions_are_rejected() -> None:
    with pytest.raises(errors.ConfigError, match=r"\*args"):

        @func.extend(three)
        def load(*args: Any) -> None: ...


def test_constants_values_and_calls() -> None:
    constant = func.constant([1])

    assert constant() is constant()
    assert pickle.loads(pickle.dumps(constant))() == [1]
    assert func.invoke(one, 3) == [3]
    assert func.invoke_if_callable(one, 3) == ([3], True)
    assert func.invoke_if_callable("value") == ("value", False)
    assert func.value_of(one) == [0] and func.value_of(4) == 4
    assert func.make_iterable((1, 2)) == (1, 2) and func.make_iterable([1]) == ([1],)


def test_constantmethod_returns_the_function() -> None:
    class Thing:
        @func.constantmethod
        def get(self) -> int:
            return 3

    assert Thing().get() == 3


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
