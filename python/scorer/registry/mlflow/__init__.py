"""An MLflow server as the registry: registered models, their aliases, and bundles as run artifacts.

Spoken to over its REST API with the standard library alone: what serves needs no ``mlflow``
package, which is heavy and loads models by running what is in them. Nothing here does.
"""

from scorer.registry.mlflow.registry import SCHEME, MlflowRegistry

__all__ = ["SCHEME", "MlflowRegistry"]
