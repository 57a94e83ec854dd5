//! Tidelock: subject.
