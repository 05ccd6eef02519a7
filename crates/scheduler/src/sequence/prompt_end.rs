//! The end of a prompt in pieces: what a policy keeps of the prompt is made bit by bit, so that
//! others can use the device in between. The pieces are those of the work itself (a segment that is
//! handed over, a clustering that is applied, one of its iterations), so where they fall changes
//! nothing.

use longview_core::LayerId;
use longview_ops::Backend;

use super::indexing::{RowMass, RowsOf};
use super::kv_sequence::{EndingPrompt, LayerStep, Readiness, Sequence};
use crate::error::SchedulerError;
use crate::layout::LayerMode;
use crate::policy::{Index, IndexKind};

/// What a piece of the end of a prompt leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptEnd {
    /// Nothing: the next token can be computed through the policy.
    Done,
    /// More, and the next piece can be computed now.
    More,
    /// More, which another thread is computing: nothing can be done here until it is ready.
    Waits,
}

impl<B: Backend> Sequence<B> {
    /// Ends a prefill: everything but the recent window is indexed if it is at least a window long,
    /// and the device holds what decode needs. Must be called before the first decode step.
    ///
    /// # Errors
    /// What the policy needs and cannot have, and [`SchedulerError::Stopped`] where
    /// [`Sequence::stop_with`] ended it; [`Sequence::make_ready`] tries again, from where it was.
    pub async fn finish_prefill(&mut self) -> Result<(), SchedulerError> {
        while self.finish_prefill_piece(true).await? != PromptEnd::Done {}
        Ok(())
    }

    /// A piece of [`Sequence::finish_prefill`]: call it until it is done. Where `may_wait` a piece
    /// waits for a clustering that runs beside it, or makes it; otherwise it does not. In between
    /// the sequence may be left as it is, read on, cut, or ended by any other call, and where one
    /// failed the next call goes on.
    ///
    /// # Errors
    /// As there.
    pub async fn finish_prefill_piece(
        &mut self,
        may_wait: bool,
    ) -> Result<PromptEnd, SchedulerError> {
        if self.readiness == Readiness::Ready {
            self.readiness = Readiness::PrefillUnfinished;
        }
        let n_tokens = self.n_tokens;
        let Some(ending) = self.ending.filter(|ending| ending.n_tokens == n_tokens) else {
            self.forget_means();
            self.save_query_sums().await?;
            let step = LayerStep::Order;
            self.ending = Some(EndingPrompt { n_tokens, layer: 0, step });
            return Ok(PromptEnd::More);
        };
        self.check_stop()?;
        if ending.layer < self.shape.n_layers {
            let layer = LayerId(ending.layer as u32);
            let mut step = ending.step;
            if step == LayerStep::Order {
                if self.leave_old_order_piece(layer) {
                    return Ok(PromptEnd::More);
                }
                let left = self.segment_piece(layer, may_wait).await?;
                if left != PromptEnd::Done {
                    return Ok(left);
                }
                step = LayerStep::Budgets;
            }
            if step == LayerStep::Budgets {
                self.begin_layer(layer).await?;
                self.ending = Some(EndingPrompt { step: LayerStep::Space, ..ending });
                return Ok(PromptEnd::More);
            }
            let left = self.end_layer(layer, &mut step, may_wait).await?;
            if left != PromptEnd::Done {
                self.ending = Some(EndingPrompt { step, ..ending });
                return Ok(left);
            }
            let (layer, step) = (ending.layer + 1, LayerStep::Order);
            self.ending = Some(EndingPrompt { layer, step, ..ending });
            return Ok(PromptEnd::More);
        }
        if self.policy.residency.kept().is_some() {
            // Heads may attend more than their share now.
            self.alloc_shared()?;
        }
        self.save_recorded().await?;
        if self.policy.needs_sums() && self.known.is_prompt(n_tokens) {
            for layer in &mut self.layers {
                layer.recorded.keep_earlier(&*self.backend).await?;
            }
        }
        self.load_device()?;
        self.readiness = Readiness::Ready;
        self.ending = None;
        Ok(PromptEnd::Done)
    }

    /// A piece of what comes before the next chunk of a prompt: whole segments of what was read are
    /// handed over to be clustered, and those before them are put in order. The chunk would do all
    /// of it in one go. Where `may_wait` a piece waits for a clustering that runs beside it, or
    /// makes it; otherwise it does not.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn prepare_chunk_piece(
        &mut self,
        may_wait: bool,
    ) -> Result<PromptEnd, SchedulerError> {
        self.bring_rows().await?;
        for layer in self.shape.layers() {
            let left = self.segment_piece(layer, may_wait).await?;
            if left != PromptEnd::Done {
                return Ok(left);
            }
        }
        Ok(PromptEnd::Done)
    }

    /// Hands the segments of `layer` over that the tokens so far have filled.
    async fn segment_piece(
        &mut self,
        layer: LayerId,
        may_wait: bool,
    ) -> Result<PromptEnd, SchedulerError> {
        let Some(index) = self.policy.index.filter(|index| index.segment > 0) else {
            return Ok(PromptEnd::Done);
        };
        self.copies.join(&self.backend)?;
        self.drop_short_runs(&index, layer, self.n_tokens).await?;
        if !self.fills_segment(layer, self.n_tokens) {
            return Ok(PromptEnd::Done);
        }
        let state = &self.layers[layer];
        let is_outstanding = state.n_submitted > state.n_indexed;
        if is_outstanding && !may_wait && !self.worker.advance(&*self.backend, layer).await? {
            let has_thread = self.worker.has_thread();
            return Ok(if has_thread { PromptEnd::Waits } else { PromptEnd::More });
        }
        self.submit_segment(&index, layer).await?;
        Ok(PromptEnd::More)
    }

    /// What the rows of a layer say about the budgets of its heads, while they are in the order in
    /// which the prompt left them.
    async fn begin_layer(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        let recalls = self.layers[layer].mode() == LayerMode::Recall && self.policy.index.is_some();
        if recalls && !self.index_waits(layer, self.n_tokens) {
            self.adapt_budgets(layer).await?;
        }
        Ok(())
    }

    /// A piece of what the policy keeps of `layer`.
    async fn end_layer(
        &mut self,
        layer: LayerId,
        step: &mut LayerStep,
        may_wait: bool,
    ) -> Result<PromptEnd, SchedulerError> {
        match (self.layers[layer].mode(), self.policy.index) {
            (LayerMode::Recall, Some(_)) if self.index_waits(layer, self.n_tokens) => {}
            (LayerMode::Recall, Some(index)) => {
                let left = self.index_piece(&index, layer, step, may_wait).await?;
                if left != PromptEnd::Done {
                    return Ok(left);
                }
                let recall = self.layers[layer].recall_mut();
                if let Some(keys) = recall.and_then(|recall| recall.prompt_keys.as_mut()) {
                    keys.forget();
                }
            }
            (LayerMode::Kept, _) => self.keep_prompt(layer).await?,
            _ => {}
        }
        Ok(PromptEnd::Done)
    }

    /// All rows of a layer that are to be indexed, in one go.
    pub(super) async fn index_prompt(
        &mut self,
        index: &Index,
        layer: LayerId,
    ) -> Result<(), SchedulerError> {
        let mut step = LayerStep::Space;
        while self.index_piece(index, layer, &mut step, true).await? != PromptEnd::Done {}
        Ok(())
    }

    /// The next piece of the index of a layer. How far it is, the counts of rows say.
    async fn index_piece(
        &mut self,
        index: &Index,
        layer: LayerId,
        step: &mut LayerStep,
        may_wait: bool,
    ) -> Result<PromptEnd, SchedulerError> {
        let state = &self.layers[layer];
        if state.n_submitted > state.n_indexed {
            if !may_wait && !self.worker.advance(&*self.backend, layer).await? {
                let has_thread = self.worker.has_thread();
                return Ok(if has_thread { PromptEnd::Waits } else { PromptEnd::More });
            }
            self.apply_job(layer).await?;
            return Ok(PromptEnd::More);
        }
        let end = self.index_end(index);
        if *step != LayerStep::Rows {
            self.begin_index(index, layer, end).await?;
            *step = LayerStep::Rows;
            return Ok(PromptEnd::More);
        }
        let n_indexed = self.layers[layer].n_indexed;
        let left = end.saturating_sub(n_indexed);
        match index.kind {
            _ if left == 0 => {}
            IndexKind::Clusters(_) if index.keeps_runs() && left < index.window => {}
            IndexKind::Clusters(_) => {
                let first = self.policy.sinks;
                let run = index.run(end - first, n_indexed - first);
                self.submit(index, layer, (run, RowsOf::Prompt), RowMass::new());
                return Ok(PromptEnd::More);
            }
            // Made, or chosen from, by the attention that all of them received.
            IndexKind::Blocks(blocks) if index.observes() => {
                self.index_blocks(index, layer, end, blocks).await?;
                return Ok(PromptEnd::Done);
            }
            IndexKind::Blocks(_) | IndexKind::Tokens(_) => {
                let n = left.min(index.piece_rows());
                self.submit(index, layer, (n, RowsOf::Prompt), RowMass::new());
                return Ok(PromptEnd::More);
            }
        }
        let had_more = self.extend_by_segment(layer).await?;
        Ok(if had_more { PromptEnd::More } else { PromptEnd::Done })
    }

    /// Takes from the index of `layer` what another end of the prompt left in it, and makes the
    /// space in which tokens are compared. Rows up to `end` are to be indexed.
    async fn begin_index(
        &mut self,
        index: &Index,
        layer: LayerId,
        end: usize,
    ) -> Result<(), SchedulerError> {
        let common = self.common_end(index, layer, end);
        if common < self.layers[layer].n_indexed {
            self.cut_index(layer, common).await?;
        }
        if let Some(tokens) = index.tokens().filter(|_| self.n_tokens > 0) {
            self.drop_old_projection(layer, end).await?;
            self.make_projection(layer, &tokens).await?;
        }
        let state = &self.layers[layer];
        let has_queries = state.recorded.last_end == self.n_tokens;
        if index.observes() && has_queries && state.n_indexed > self.policy.sinks {
            self.cut_index(layer, self.policy.sinks).await?;
        }
        Ok(())
    }

    /// The row behind the last one that an index has at the end of a prompt, where it keeps no runs
    /// that were made before.
    fn index_end(&self, index: &Index) -> usize {
        let (first, recent) = (self.policy.sinks, self.policy.recent);
        first + index.covers(self.n_tokens.saturating_sub(first + recent))
    }

    /// The row behind the last one whose place in the index of `layer` is what it would be if the
    /// prompt, of which rows up to `end` are indexed, had been read at once. Others come from a
    /// prompt that ended earlier, or from decoded tokens.
    fn common_end(&self, index: &Index, layer: LayerId, end: usize) -> usize {
        let (first, state) = (self.policy.sinks, &self.layers[layer]);
        let Some(recall) = state.recall() else { return state.n_indexed };
        match index.kind {
            IndexKind::Clusters(_) if index.keeps_runs() => state.n_indexed,
            IndexKind::Clusters(_) => {
                index.common_runs(first, end - first, recall.index.run_ends())
            }
            // A block, and a token, is what it is wherever others end.
            IndexKind::Blocks(_) | IndexKind::Tokens(_) => state.n_indexed.min(end),
        }
    }

    /// Whether the index of every layer is the one that its prompt has when it is read at once; or,
    /// where runs are kept, whether too few rows for another one are behind them.
    pub(super) fn has_runs_of_prompt(&self) -> bool {
        let Some(index) = self.policy.index else { return true };
        let end = self.index_end(&index);
        let recalling = self.shape.layers().filter(|layer| self.layers[*layer].recall().is_some());
        let mut indexed = recalling.filter(|layer| !self.index_waits(*layer, self.n_tokens));
        indexed.all(|layer| {
            let n_indexed = self.layers[layer].n_indexed;
            if index.keeps_runs() {
                return end < n_indexed + index.window;
            }
            n_indexed == end && self.common_end(&index, layer, end) == end
        })
    }
}

#[cfg(test)]
mod tests {
    use pollster::block_on;

    use super::super::fixture::{
        blocks, check_rows, clusters, end_in_pieces, inject, made, options, prefilled, streaming,
    };
    use super::super::options::{HostStoreKind, Placement, SequenceOptions};
    use super::*;

    #[test]
    fn an_end_in_pieces_is_that_of_one_go() {
        for overlap in [false, true] {
            let layout =
                SequenceOptions { overlap, ..options(Placement::InPlace, HostStoreKind::Auto) };
            for policy in [clusters(), blocks(), streaming()] {
                let want = prefilled(made(policy.clone(), layout), 20);
                let mut sequence = made(policy, layout);
                inject(&mut sequence, 20);
                let n_pieces = end_in_pieces(&mut sequence);
                // Rows of an index are handed over in one, and taken in another.
                let of_layer = if sequence.policy.index.is_some() { 5 } else { 2 };
                assert!(n_pieces >= of_layer * sequence.shape.n_layers + 2, "{n_pieces}");
                assert_eq!(sequence.readiness, Readiness::Ready);
                for (layer, like) in sequence.layers.iter().zip(&want.layers) {
                    assert_eq!(layer.n_indexed, like.n_indexed);
                    assert_eq!(layer.positions, like.positions);
                }
                check_rows(&sequence);
            }
        }
    }

    #[test]
    fn segments_are_handed_over_one_at_a_time() {
        for overlap in [false, true] {
            let layout =
                SequenceOptions { overlap, ..options(Placement::InPlace, HostStoreKind::Auto) };
            let filled = || {
                let mut sequence = made(clusters(), layout);
                inject(&mut sequence, 20);
                sequence.policy.index.as_mut().unwrap().segment = 4;
                sequence
            };
            let mut want = filled();
            for layer in want.shape.layers() {
                block_on(want.submit_segments(layer, 20)).unwrap();
            }
            let mut sequence = filled();
            // A sink, four segments, one row of the next, and two recent ones.
            assert_eq!(sequence.tokens_to_segment(), Some(3));
            let mut n_pieces = 0;
            loop {
                match block_on(sequence.prepare_chunk_piece(false)).unwrap() {
                    PromptEnd::Done => break,
                    PromptEnd::More => n_pieces += 1,
                    PromptEnd::Waits => std::thread::yield_now(),
                }
            }
            // Without a thread, pieces of clusterings come between.
            let n_segments = 4 * sequence.shape.n_layers;
            assert!(n_pieces == n_segments || (!overlap && n_pieces > n_segments), "{n_pieces}");
            assert_eq!(sequence.tokens_to_segment(), Some(3));
            assert!(sequence.layers.iter().all(|layer| layer.n_submitted == 17));
            end_in_pieces(&mut sequence);
            end_in_pieces(&mut want);
            for (layer, like) in sequence.layers.iter().zip(&want.layers) {
                assert_eq!(layer.n_indexed, like.n_indexed);
                assert_eq!(layer.positions, like.positions);
            }
            check_rows(&sequence);
        }
    }

    #[test]
    fn a_cut_or_a_read_between_two_pieces_begins_the_end_again() {
        let layout = options(Placement::InPlace, HostStoreKind::Auto);
        for n_pieces in 0..12 {
            let mut sequence = made(clusters(), layout);
            inject(&mut sequence, 20);
            for _ in 0..n_pieces {
                block_on(sequence.finish_prefill_piece(false)).unwrap();
            }
            block_on(sequence.truncate(15)).unwrap();
            end_in_pieces(&mut sequence);
            let n_indexed = sequence.layers[1].n_indexed;
            assert!(n_indexed <= 13 && sequence.readiness == Readiness::Ready, "{n_indexed}");
            check_rows(&sequence);
        }
    }
}
