"""Element types: one object of each, in every process."""

import pickle
from copy import deepcopy

import pytest

from kernbench._dtypes import ALL, TRITON, as_dtype


@pytest.mark.parametrize(
    "dtype", sorted({*ALL, *TRITON.values()}, key=lambda dtype: dtype.name), ids=lambda dtype: dtype.name
)
def test_a_type_stays_one_object(dtype):
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert deepcopy(dtype) is dtype
    assert [other for other in ALL if other == dtype] == [dtype] * (dtype in ALL)


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
def test_a_type_has_its_name(dtype):
    assert as_dtype(dtype.name) is dtype
