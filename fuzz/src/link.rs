//! What another server of the cluster sends.

use tidelock_node::cell_codec;
use tidelock_replica::FrameAddress;
use tidelock_wire::link::{Frame, FrameDecoder, FrameError};

/// Longest body that is taken here.
const BODY_MAX: usize = 4096;

/// A stream of frames, cut into pieces of as many bytes as the first byte says; each body is then read as what its
/// kind says, and the whole input as the body of a frame.
pub fn link(data: &[u8]) {
    let Some((&piece, stream)) = data.split_first() else {
        return;
    };
    let whole = frames(stream, stream.len().max(1));
    assert_eq!(
        whole,
        frames(stream, usize::from(piece).max(1)),
        "frames do not depend on pieces"
    );
    for frame in &whole.0 {
        let mut body = vec![frame.head.kind];
        body.extend_from_slice(&frame.body);
        cell_codec::fuzz(&body);
        let _ = FrameAddress::of(&frame.body);
    }
    cell_codec::fuzz(data);
}

fn frames(stream: &[u8], piece: usize) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = FrameDecoder::new(BODY_MAX);
    let mut frames = Vec::new();
    for piece in stream.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}
