"""Central differences."""

import numpy as np


def slope(function, point, step=1e-6):
    """Gradient of a scalar function, to about 1e-9."""
    return np.array(
        [
            (function(point + step * e) - function(point - step * e)) / step / 2
            for e in np.eye(point.size)
        ]
    )
