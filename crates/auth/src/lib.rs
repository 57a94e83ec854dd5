//! Tidelock: auth.
