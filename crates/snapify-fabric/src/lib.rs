//! snapify-fabric
