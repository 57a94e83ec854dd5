//! Tidelock: conf.
