//! First tokens of a sequence, counted by how their rows were made.

/// First tokens of a sequence, counted as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownTokens {
    /// Tokens of prompts alone.
    read: usize,
    /// Also tokens that were decoded with attention to everything.
    exact: usize,
}

impl KnownTokens {
    /// Of a sequence of which only this is known.
    pub fn of_prompt(n: usize) -> Self {
        Self { read: n, exact: n }
    }

    /// Of which so many are of prompts, and so many had attention to everything.
    #[cfg(test)]
    pub fn of(read: usize, exact: usize) -> Self {
        Self { read, exact }
    }

    /// `len` tokens of a prompt come behind `n` tokens.
    pub fn read(&mut self, n: usize, len: usize) {
        for known in [&mut self.read, &mut self.exact] {
            *known += if *known == n { len } else { 0 };
        }
    }

    /// A token that attended to everything comes behind `n` tokens.
    pub fn decoded(&mut self, n: usize) {
        self.exact += usize::from(self.exact == n);
    }

    /// Only `n` tokens are left.
    pub fn cut(&mut self, n: usize) {
        self.read = self.read.min(n);
        self.exact = self.exact.min(n);
    }

    /// Tokens of prompts, from the first on.
    pub fn n_read(&self) -> usize {
        self.read
    }

    /// The same with those that were decoded with attention to everything.
    pub fn n_exact(&self) -> usize {
        self.exact
    }

    /// Whether all of `n` tokens are those of prompts.
    pub fn is_prompt(&self, n: usize) -> bool {
        self.read >= n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_count_until_a_token_is_decoded_through_a_policy() {
        let mut known = KnownTokens::default();
        known.read(0, 5);
        known.decoded(5);
        assert_eq!(known, KnownTokens { read: 5, exact: 6 });
        known.read(6, 4);
        assert_eq!(known, KnownTokens { read: 5, exact: 10 });
        known.cut(5);
        known.read(5, 2);
        assert_eq!(known, KnownTokens::of_prompt(7));
        // A token came between that counts nowhere.
        known.read(8, 3);
        assert_eq!(known, KnownTokens::of_prompt(7));
        assert!(known.is_prompt(7) && !known.is_prompt(8));
    }
}
