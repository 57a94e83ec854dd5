//! Acknowledgements of publishes: the one answer that is written for every message.

use crate::deliver_batch::Message;
use crate::worker::Core;
use tidelock_api::{write_pub_ack, write_pub_ack_error};
use tidelock_base::AccountId;
use tidelock_jetstream::window::PubOutcome;

impl Core {
    /// Tells a client what became of its publish. Nothing is allocated unless it was refused.
    pub(crate) fn pub_ack(
        &mut self,
        account: AccountId,
        reply: &[u8],
        stream: &str,
        domain: Option<&str>,
        outcome: &PubOutcome,
    ) {
        let domain = domain.unwrap_or_default();
        let mut body = std::mem::take(&mut self.api.ack);
        body.clear();
        match outcome {
            PubOutcome::Stored { seq } | PubOutcome::Skipped { seq } => {
                write_pub_ack(&mut body, stream, domain, seq.0, false);
            }
            PubOutcome::Duplicate { seq } => write_pub_ack(&mut body, stream, domain, seq.0, true),
            PubOutcome::Refused(refusal) => write_pub_ack_error(&mut body, stream, &refusal.to_api_error()),
        }
        let message = Message {
            subject: reply,
            target: reply,
            reply: b"",
            header: b"",
            payload: &body,
            shared: None,
        };
        self.publish_made(account, &message);
        self.api.ack = body;
    }
}
