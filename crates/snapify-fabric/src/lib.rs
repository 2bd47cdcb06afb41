//! Channels and windows: how the processes of an offload application reach each other.
//!
//! These are the two halves of what the papers call SCIF. A [`Channel`] carries ordered messages (control);
//! a window ([`SharedFile`], [`Mapping`]) is memory that both ends map, for one-sided transfers and for the
//! command [rings](ring). This provider is for processes of one machine: UNIX sockets and shared files.
//!
//! All state is in these objects' memory or in the window, none in the kernel except what sits unread in a
//! socket: a process can be frozen at any instant and rebuilt from its memory.
#![deny(unsafe_code)]

pub mod channel;
mod futex;
pub mod gate;
mod moves;
pub mod ring;
pub mod window;

pub use channel::{Channel, ChannelError, Listener, MAX_DESCRIPTORS, PeerCredentials};
pub use gate::Gate;
pub use window::{Mapping, SharedFile, WindowError};
