"""The door through which an output format enters a step; compilers of formats register here."""

from eyas.constraint.base import Constraint, ConstraintCompiler, ConstraintFailure

__all__ = ["Constraint", "ConstraintCompiler", "ConstraintFailure"]
