//! scorer-xgboost
