//! A publish on its way from a connection to its receivers.

use std::cell::OnceCell;

use bytes::Bytes;
use tidelock_base::Mono;

/// A message that a client published, borrowed from the input.
///
/// It is made by [`crate::Inbound::receive`]; a host that maps subjects makes another with
/// [`Publish::with_subject`].
#[derive(Debug)]
pub struct Publish<'a> {
    /// Subject as receivers see it.
    pub subject: &'a [u8],
    /// Reply subject.
    pub reply: Option<&'a [u8]>,
    /// The whole header block, `NATS/1.0\r\n…\r\n\r\n`, or empty. Its form is not checked.
    pub header: &'a [u8],
    /// Payload without header.
    pub payload: &'a [u8],
    /// When it was received.
    pub now: Mono,
    /// Everything that follows the subject, fit to be sent as it stands: `[reply ]size\r\n…payload\r\n`, or with a
    /// header `[reply ]header_size size\r\n…`. Empty if the input was not in that form.
    pub(crate) tail: &'a [u8],
    /// Header, payload and CRLF.
    pub(crate) block: &'a [u8],
    pub(crate) header_text: &'a [u8],
    pub(crate) size_text: &'a [u8],
    /// `block` as shared bytes, made when the first receiver wants it.
    pub(crate) shared: &'a OnceCell<Bytes>,
}

impl<'a> Publish<'a> {
    /// The same message under another subject.
    #[must_use]
    pub const fn with_subject(&self, subject: &'a [u8]) -> Self {
        Self { subject, ..*self }
    }

    /// Bytes of header and payload.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Whether there is neither header nor payload.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Header and payload, one after the other.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.block.strip_suffix(b"\r\n").unwrap_or(self.block)
    }

    /// Header and payload as shared bytes: without a copy if the message was read to its exact size or was shared
    /// before, else copied now, once for all receivers.
    #[must_use]
    pub fn share_body(&self) -> Bytes {
        self.share_block().slice(..self.len())
    }

    /// The payload alone as shared bytes; see [`Self::share_body`].
    #[must_use]
    pub fn share_payload(&self) -> Bytes {
        self.share_block().slice(self.header.len()..self.len())
    }

    /// Whether [`Self::share_body`] costs no copy.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared.get().is_some()
    }

    /// Header, payload and CRLF as shared bytes.
    pub(crate) fn share_block(&self) -> &Bytes {
        self.shared.get_or_init(|| Bytes::copy_from_slice(self.block))
    }
}
