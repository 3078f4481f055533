//! Delete collection: many objects in few transactions.

use super::{options, preconditions, remove};
use crate::answer::Answer;
use crate::turns::Turns;
use crate::writer::ObjectWriter;
use crate::{Call, read};
use futures_util::stream::{self, TryStreamExt as _};
use master_client::Body;
use master_objects::deletion::{Options, Step, plan};
use master_objects::store_error;
use master_schema::error::ApiError;
use master_store::{Entry, Op, StoreError};

/// Objects per transaction.
const BATCH: usize = 256;
/// Operations of that transaction: a service frees its addresses and node ports, too. The store
/// takes a few more.
const OPS: usize = 1000;
/// Bytes of the objects that stay in that transaction, with their deletion begun: a quarter of what
/// the store takes.
const BYTES: usize = 4 << 20;
/// Concurrent deletions of objects that each need a transaction of their own.
const TOGETHER: usize = 64;

/// Deletes every selected object.
pub(crate) async fn collection(call: &Call, writer: &ObjectWriter<'_>, content: Body) -> Answer {
    call.accept()?;
    let options = options::read(call, content).await?;
    let page = call.page(writer.reader, &call.selector()?).await?;
    let mut turns = Turns::default();
    for batch in page.entries.chunks(BATCH) {
        delete_batch(call, writer, batch, &options, &mut turns).await?;
    }
    read::answer(call, &page).await
}

/// Deletes a batch in one transaction; objects that another writer changed, to which admission adds
/// writes, or for which the transaction has no room, get one each.
async fn delete_batch(
    call: &Call,
    writer: &ObjectWriter<'_>,
    entries: &[Entry],
    options: &Options,
    turns: &mut Turns,
) -> Result<(), ApiError> {
    let (mut ops, mut alone) = (Vec::with_capacity(entries.len()), Vec::new());
    let mut bytes_left = BYTES;
    for entry in entries {
        // Admission may wait: no turn is held meanwhile.
        turns.pause(entry.value.len()).await;
        let fields = master_objects::decode_for_update(&call.kind, entry)?;
        preconditions(call, entry, &fields, options)?;
        let admitted = writer.admit_delete(call, &fields).await?;
        if !admitted.ops.is_empty() {
            alone.push(entry);
            continue;
        }
        match plan(&call.kind, &fields, options, call.clock.now()) {
            Step::Pending => {}
            Step::Delete(_) => {
                let freed = writer.release(call, &fields).await?;
                if ops.len() + freed.len() < OPS {
                    ops.push(Op::delete(&entry.key, entry.modified));
                    ops.extend(freed);
                } else {
                    alone.push(entry);
                }
            }
            Step::Update(going) => {
                let bytes = master_objects::encode(&call.kind, going)?;
                if entry.value == bytes {
                    continue;
                }
                match bytes_left.checked_sub(bytes.len()) {
                    Some(left) => {
                        bytes_left = left;
                        ops.push(Op::update(&entry.key, entry.modified, bytes));
                    }
                    None => alone.push(entry),
                }
            }
        }
    }
    if options.dry_run || (ops.is_empty() && alone.is_empty()) {
        return Ok(());
    }
    match writer.store.commit(ops).await {
        Ok(_) => {}
        Err(StoreError::Conflict { .. }) => alone = entries.iter().collect(),
        Err(error) => return Err(store_error(error)),
    }
    // Concurrently, so that the store commits them together.
    let alone = stream::iter(alone.into_iter().map(Ok));
    alone
        .try_for_each_concurrent(TOGETHER, |entry| async move {
            match remove(call, writer, &entry.key, options, &mut Vec::new()).await {
                Ok(_) => Ok(()),
                Err(error) if error.is_not_found() => Ok(()),
                Err(error) => Err(error),
            }
        })
        .await
}
