//! Framing of cluster links.
