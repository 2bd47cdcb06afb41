//! snapify-offload
