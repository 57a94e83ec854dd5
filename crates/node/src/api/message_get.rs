//! STREAM.MSG.GET: one stored message in JSON. Served by the stream's leader after a read.

use super::direct_get::{Stop, find};
use super::direct_rules::{Query, stored};
use super::subjects::Call;
use super::{Job, Stage};
use crate::worker::Core;
use tidelock_api::{MsgGetRequest, MsgGetResponse, ResponseKind, StoredMsg, Time, decode_strict};
use tidelock_base::{ApiError, ApiErrorCode};
use tidelock_record::RecordView;

impl Core {
    /// STREAM.MSG.GET at the stream's leader.
    pub(super) fn message_get(&mut self, job: Box<Job>, call: &Call<'_>) {
        let (query, no_hdr) = match get_request(&job.request.payload, self.is_strict()) {
            Ok(wanted) => wanted,
            Err(error) => return self.refuse(&job.request, call.endpoint, &error),
        };
        let Some(stream) = self.stream(job.group) else {
            return;
        };
        let found = match find(stream, &query) {
            Ok(found) => found,
            Err(Stop::Cold(need)) => return self.fetch_for(job, need),
            Err(Stop::Missing) => {
                return self.refuse(&job.request, call.endpoint, &ApiErrorCode::NoMessageFound.into());
            }
            Err(Stop::Damaged(seq)) => {
                if let Some(job) = self.wait_for_copy(job.at(Stage::Read), seq) {
                    let error = ApiError::text(ApiErrorCode::StreamGeneralErrorF, "message is damaged");
                    self.refuse(&job.request, call.endpoint, &error);
                }
                return;
            }
        };
        let Ok(record) = RecordView::parse(&found.record) else {
            return;
        };
        let subject = String::from_utf8_lossy(record.subject());
        let message = StoredMsg {
            subject: &subject,
            seq: found.seq.0,
            hdrs: if no_hdr { b"" } else { record.header() },
            data: record.payload(),
            time: Time(found.ts),
        };
        self.reply_ok(
            &job.request,
            ResponseKind::StreamMsgGet,
            &MsgGetResponse { message },
        );
    }
}

/// What the body of a STREAM.MSG.GET asks for, and whether the header is left out.
pub(super) fn get_request(body: &[u8], strict: bool) -> Result<(Query, bool), ApiError> {
    let wanted: MsgGetRequest = decode_strict(body, strict)?;
    Ok((stored(&wanted)?, wanted.no_hdr))
}
