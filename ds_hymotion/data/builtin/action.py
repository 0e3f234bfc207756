"""What an action is: a function that puts it into a body and says in words what it did."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ds_hymotion.data.builtin.body import Body

# Words for the placeholders of caption templates; "variant" chooses among the lists of templates.
Facts = dict[str, str]
Builder = Callable[[Body, np.random.Generator], Facts]
