//! Subject transforms.

/// placeholder
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transform;
/// placeholder
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid subject")]
pub struct TransformError;
