"""One exception hierarchy, one exit code per kind: the table of issue and README."""

import inspect

from deployctl import errors


def test_every_kind_has_the_exit_code_that_the_readme_lists() -> None:
    codes = {
        "DeployctlError": 70,
        "NegativeAnswer": 1,
        "UsageError": 2,
        "HostError": 3,
        "ProvisionError": 4,
        "ModelUnavailable": 5,
        "MeasurementError": 6,
        "Cancelled": 7,
    }
    assert {name: getattr(errors, name).exit_code for name in codes} == codes


def test_every_error_belongs_to_the_one_hierarchy() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert kinds
    assert all(issubclass(kind, errors.DeployctlError) for kind in kinds)
