//! snapify-store
