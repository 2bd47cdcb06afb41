//! Channels and windows: how the processes of an offload application reach each other.
//!
//! These are the two halves of what the papers call SCIF. A [`Channel`] carries ordered messages (control);
//! a window is memory that both ends map, for one-sided transfers and for command rings. This provider is for
//! processes of one machine: UNIX sockets and shared files.
#![deny(unsafe_code)]

pub mod channel;

pub use channel::{Channel, ChannelError, Listener, MAX_DESCRIPTORS, PeerCredentials};
