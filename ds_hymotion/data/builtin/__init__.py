"""The built-in motion set: a procedural generator of captioned human motions of six action types.

A motion is choreographed as a :class:`~ds_hymotion.data.builtin.body.Body` over time (feet, pelvis, bends, hands),
one file per action type, and solved into joint rotations by inverse kinematics and balance (``solver.py``).
"""

from __future__ import annotations

from ds_hymotion.data.builtin.clip import ACTIONS, BuiltinClip, generate_clip
from ds_hymotion.data.builtin.collection import generate_set, table
from ds_hymotion.data.builtin.files import write_set

__all__ = ["ACTIONS", "BuiltinClip", "generate_clip", "generate_set", "table", "write_set"]
