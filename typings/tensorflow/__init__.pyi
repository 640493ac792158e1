# The stubs that pyright carries refuse `tf.Variable(0)` and believe that no
# gradient is None. To pyright TensorFlow is Any, as Keras is (pyproject.toml).
from typing import Any

def __getattr__(name: str) -> Any: ...
