//! Subjects: what is valid, what matches what, who is interested, and how one subject becomes another.
//!
//! A subject is a run of bytes cut into tokens by `.`; its bytes are not checked for UTF-8. A *literal* names one
//! subject. A *filter* names a set of subjects: a token `*` stands for any one token, a last token `>` for one or
//! more. Wildcards count only as whole tokens, `foo*` is a literal. (NATS documentation, "Subject-Based Messaging".)
//!
//! Invariants: [`Subject`] and [`SubjectFilter`] exist only in a valid state; an [`InterestTree`] holds valid filters
//! only. A subject with an empty token (`a..b`, `.a`, `a.`, the empty one) matches nothing.
//!
//! Left to others: who may use a subject (`auth`), queue groups and delivery (`node`), weights of account mappings
//! (`conf`).

mod matching;
mod ordmap;
mod owned;
mod targets;
mod transform;
mod tree;

pub use matching::{
    FILTER_TOKENS_MAX, has_wildcard, is_subset, is_valid_filter, is_valid_literal, matches, overlaps, tokens,
};
pub use owned::{Subject, SubjectError, SubjectFilter};
pub use targets::{Targets, TargetsIter};
pub use transform::{Transform, TransformError};
pub use tree::InterestTree;
