//! snapify-job
