//! The drain (docs/protocol.md, "Pause, capture, resume") as models whose every interleaving a checker visits: no message
//! is lost, doubled or reordered, whatever the moment of the pause, of the two captures and of a crash; and a pause always ends.
//!
//! `protocol` models rings, gates, marker and agents; `gate` the words of one gate, atomic operation by operation. All
//! behaviours of a model are finite: threads have so many operations to do, and nobody waits in a loop without somebody else having
//! moved on. So "always ends" is "every behaviour ends where all is done", which is what an `eventually` property checks.
//!
//! A model proves little that would hold for a wrong protocol as well. Each is therefore also run with a step left out, and
//! the checker has to find what that step is for.

mod gate;
mod protocol;
mod wake;
