//! snapify-omptarget
