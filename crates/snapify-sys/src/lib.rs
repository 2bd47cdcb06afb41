//! snapify-sys
