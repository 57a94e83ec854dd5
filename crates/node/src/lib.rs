//! Tidelock: node.
