//! Tidelock: session.
