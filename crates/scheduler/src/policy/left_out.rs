//! What becomes of the attention that a step leaves out: what stands for it, and how it is bounded.

use super::error::quoted;
use super::limits::MAX_CONTEXT;

/// What stands for tokens that a step does not choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Residual {
    /// Nothing: their attention is dropped.
    Drop,
    /// Each cluster is attended as its mean key and its mean value, as often as it has such tokens.
    Means,
    /// Clusters with a chosen token as [`Self::Means`] has them; all others by the mean key and the
    /// mean value of their group.
    Groups,
    /// So many of them in each KV head, drawn evenly; each is attended as often as it stands for
    /// others (vAttention, arXiv 2510.05688).
    Sample(usize),
    /// As many as keep the relative error of the softmax's denominator within `error` but for a
    /// chance of `failure`, both above 0 and below 1.
    Verified {
        /// The paper's epsilon.
        error: f32,
        /// The paper's delta.
        failure: f32,
    },
}

/// How the attention that a step leaves out is bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionBound {
    /// It is not.
    #[default]
    Off,
    /// From the index alone: it is never more.
    WorstCase,
    /// From tokens that are drawn: each bound holds with a confidence of 95 %.
    Sampled,
}

impl Residual {
    /// Whether means of clusters stand for tokens.
    pub fn has_means(self) -> bool {
        matches!(self, Self::Means | Self::Groups)
    }

    /// Whether tokens are drawn.
    pub fn draws(self) -> bool {
        matches!(self, Self::Sample(_) | Self::Verified { .. })
    }
}

/// Numbers behind the name of a value.
fn sample(text: &str, given: &str) -> Result<Residual, String> {
    let draws = given.parse().ok().filter(|n| (1..=MAX_CONTEXT).contains(n));
    draws.map(Residual::Sample).ok_or_else(|| {
        format!("'{}': sample:N draws a whole number N of tokens, at least 1", quoted(text))
    })
}

/// An error and a chance; a list of policies ends at commas, so that a colon may stand for it.
fn verified(text: &str, given: &str) -> Result<Residual, String> {
    let part = |text: &str| text.parse().ok().filter(|x: &f32| *x > 0.0 && *x < 1.0);
    let both = given.split_once([',', ':']).and_then(|(error, failure)| {
        Some(Residual::Verified { error: part(error)?, failure: part(failure)? })
    });
    both.ok_or_else(|| {
        format!(
            "'{}': verified:EPS,DELTA takes an error and a chance of missing it, both above 0 and \
             below 1, as verified:0.05,0.05",
            quoted(text)
        )
    })
}

impl std::str::FromStr for Residual {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, numbers) = text.split_once(':').map_or((text, None), |(n, x)| (n, Some(x)));
        match (name, numbers) {
            ("drop", None) => Ok(Self::Drop),
            // The second is the name until release 0.1, which session files of version 1 still use.
            ("means" | "estimate", None) => Ok(Self::Means),
            ("groups", None) => Ok(Self::Groups),
            ("sample", numbers) => sample(text, numbers.unwrap_or_default()),
            ("verified", numbers) => verified(text, numbers.unwrap_or_default()),
            _ => Err(format!(
                "'{}' is not one of drop, means, groups, sample:N, verified:EPS,DELTA",
                quoted(text)
            )),
        }
    }
}

impl Residual {
    /// As session files have it among options.
    pub(super) fn text(self) -> String {
        match self {
            Self::Drop => "drop".into(),
            Self::Means => "estimate".into(),
            Self::Groups => "groups".into(),
            Self::Sample(draws) => format!("sample:{draws}"),
            Self::Verified { error, failure } => format!("verified:{error},{failure}"),
        }
    }
}

impl std::str::FromStr for AttentionBound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" | "false" => Ok(Self::Off),
            // What true meant when there was one kind of bound.
            "worst-case" | "true" => Ok(Self::WorstCase),
            "sampled" => Ok(Self::Sampled),
            _ => Err(format!("'{}' is not one of off, worst-case, sampled", quoted(text))),
        }
    }
}

impl AttentionBound {
    /// As session files have it, which knew true and false alone.
    pub(super) fn text(self) -> String {
        match self {
            Self::Off => "false".into(),
            Self::WorstCase => "true".into(),
            Self::Sampled => "sampled".into(),
        }
    }
}

/// The line of a session file's policy that says what stands for the rest: `true` for means, as
/// version 1 has it.
pub(super) fn tail_text(residual: Residual) -> String {
    match residual {
        Residual::Drop => "false".into(),
        Residual::Means => "true".into(),
        drawn => drawn.text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn residual(text: &str) -> Result<Residual, String> {
        text.parse()
    }

    fn bound(text: &str) -> Result<AttentionBound, String> {
        text.parse()
    }

    #[test]
    fn values_are_read_as_they_are_written() {
        let verified = Residual::Verified { error: 0.05, failure: 0.1 };
        for value in
            [Residual::Drop, Residual::Means, Residual::Groups, Residual::Sample(64), verified]
        {
            assert_eq!(residual(&value.text()), Ok(value));
        }
        assert_eq!(residual("verified:0.05:0.1"), Ok(verified), "in a list of policies");
        assert_eq!(residual("means"), residual("estimate"));
        for value in [AttentionBound::Off, AttentionBound::WorstCase, AttentionBound::Sampled] {
            assert_eq!(bound(&value.text()), Ok(value));
        }
        assert_eq!(bound("off"), bound("false"));
        assert_eq!(bound("worst-case"), bound("true"));
    }

    #[test]
    fn session_files_keep_the_words_of_version_1_for_what_it_knew() {
        let texts = [Residual::Drop, Residual::Means, Residual::Sample(7)].map(tail_text);
        assert_eq!(texts, ["false", "true", "sample:7"]);
        let texts = [AttentionBound::Off, AttentionBound::WorstCase].map(|bound| bound.text());
        assert_eq!(texts, ["false", "true"]);
    }

    #[test]
    fn a_value_that_is_none_says_what_would_do() {
        let said = residual("guess").unwrap_err();
        assert_eq!(said, "'guess' is not one of drop, means, groups, sample:N, verified:EPS,DELTA");
        for text in ["sample", "sample:", "sample:0", "sample:-1", "sample:x", "sample:1.5"] {
            let said = residual(text).unwrap_err();
            let want = "sample:N draws a whole number N of tokens, at least 1";
            assert_eq!(said, format!("'{text}': {want}"));
        }
        for text in ["verified", "verified:0.1", "verified:0,0.1", "verified:0.1,1", "verified:a,b"]
        {
            assert!(residual(text).unwrap_err().contains("as verified:0.05,0.05"), "{text}");
        }
        assert!(residual("drop:1").is_err() && residual("means:1").is_err());
        assert_eq!(bound("yes").unwrap_err(), "'yes' is not one of off, worst-case, sampled");
    }
}
