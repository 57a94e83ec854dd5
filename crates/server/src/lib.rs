//! Tidelock: server.
