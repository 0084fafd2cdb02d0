"""An MLflow server as the registry: registered models, their aliases, and bundles as run artifacts.

This package calls MLflow's REST API with the standard library only. The ``mlflow`` package is not used on a
server, because it is large and loads models by running code that they contain.
"""

from scorer.registry.mlflow.registry import SCHEME, MlflowRegistry

__all__ = ["SCHEME", "MlflowRegistry"]
