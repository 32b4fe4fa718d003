"""Array types for annotations: ``Float[Tensor, "*batch n"]`` is a floating-point tensor of that shape.

The strings name the dimensions, as in jaxtyping: ``*batch`` stands for any number of dimensions, and a name has one
size within a call. For type checkers and at run time the annotations are ``typing.Annotated`` tensors, so that
``typing.get_type_hints`` needs no other package. The tests check them with jaxtyping at every call.
"""

from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Float64
from typing import Annotated as Int
from typing import Annotated as Int64
from typing import Annotated as Shaped

__all__ = ["Bool", "Float", "Float64", "Int", "Int64", "Shaped"]
