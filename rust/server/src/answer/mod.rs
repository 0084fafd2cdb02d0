//! The answer path, one file per stage, in this order:
//!
//! arrive → admit → decode → features → route → evaluate → decide → reply → log
//!
//! `score`, `batch` and `select` each run the sequence for one method; everything from `decode` on runs
//! inline, without waiting, on the thread that read the request.

pub(crate) mod admit;
pub(crate) mod arrive;
pub(crate) mod decode;
