"""Auditing the assisted generation of transformers against its plain `generate`, in process."""

from surefoot.audit.assisted.plan import MODES, AssistedPlan
from surefoot.audit.assisted.run import audit_transformers

__all__ = ["MODES", "AssistedPlan", "audit_transformers"]
