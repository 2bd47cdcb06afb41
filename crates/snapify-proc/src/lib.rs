//! snapify-proc
