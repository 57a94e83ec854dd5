//! Tidelock: sim.
