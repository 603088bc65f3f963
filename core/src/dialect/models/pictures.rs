//! How models count pictures and the pages of PDFs: a rule for each family (`docs/estimates.md` 1.4).
//!
//! Data, as documented or measured; the arithmetic is in `tokens/media.rs`. A new family is a row of [`BY_NAME`].

use super::family::Family;
use crate::dialect::PictureDetail;

/// How a model counts a picture, and a page of a PDF.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PictureRule {
    pub(crate) cost: PictureCost,
    pub(crate) page: PageCost,
}

/// How a model counts a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PictureCost {
    /// By square patches that cover it, after it was made smaller.
    Patches(Patches),
    /// By tiles of 512 pixels, after it was made smaller, and a base. Of `low` detail only the base (OpenAI).
    Tiles { base: u32, tile: u32 },
    /// By crops of 768 pixels (Gemini up to 2.5).
    Crops,
    /// By as many patches, in its shape, as its resolution allows (Gemini from 3 on).
    Shape,
    /// By tiles of 448 pixels, six at most, and one of the whole (Grok).
    WholeAndTiles,
}

/// What one page of a PDF costs, tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PageCost {
    /// Not known: a document costs a flat guess.
    Unknown,
    /// Always the same for its picture, and a usual amount of text.
    Flat { picture: u32, text: u32 },
    /// What a picture of it costs, of a size that is not documented, and a usual amount of text.
    Picture { text: u32 },
    /// As many patches as the resolution allows.
    Shape,
}

/// A count by patches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Patches {
    /// Pixels of a patch's side.
    pub(crate) side: u32,
    /// Tokens of a patch.
    pub(crate) tokens: f64,
    /// Tokens that end each row of patches.
    pub(crate) row_end: u32,
    pub(crate) shrinking: Shrinking,
    /// The limits by the detail that the client asked for: `low`, `high`, `original`, none.
    pub(crate) limits: [PictureLimit; 4],
}

/// How a picture with too many patches is made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shrinking {
    /// To the largest size that fits (Claude).
    Largest,
    /// By the ratio of the areas, then to whole patches (OpenAI).
    WholePatches,
}

/// The largest picture that a model reads as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PictureLimit {
    /// Pixels of the longer side.
    pub(crate) longest: u32,
    pub(crate) patches: u32,
}

impl Patches {
    /// The limit for this detail.
    pub(crate) fn limit(&self, detail: Option<PictureDetail>) -> PictureLimit {
        let [low, high, original, auto] = self.limits;
        match detail {
            Some(PictureDetail::Low) => low,
            Some(PictureDetail::Medium | PictureDetail::High) => high,
            Some(PictureDetail::Original) => original,
            None => auto,
        }
    }
}

const fn limit(longest: u32, patches: u32) -> PictureLimit {
    PictureLimit { longest, patches }
}

const fn patches(side: u32, limit: PictureLimit, shrinking: Shrinking) -> Patches {
    Patches { side, tokens: 1.0, row_end: 0, shrinking, limits: [limit; 4] }
}

const fn claude(longest: u32, most: u32, text: u32) -> PictureRule {
    // A page was measured: its picture costs the same for all models.
    let cost = PictureCost::Patches(patches(28, limit(longest, most), Shrinking::Largest));
    PictureRule { cost, page: PageCost::Flat { picture: 1_525, text } }
}

const fn openai(tokens: f64, limits: [PictureLimit; 4]) -> PictureRule {
    let patches = patches(32, limits[0], Shrinking::WholePatches);
    PictureRule {
        cost: PictureCost::Patches(Patches { tokens, limits, ..patches }),
        page: PageCost::Picture { text: 450 },
    }
}

const fn tiles(base: u32, tile: u32) -> PictureRule {
    PictureRule { cost: PictureCost::Tiles { base, tile }, page: PageCost::Picture { text: 450 } }
}

const fn mistral(side: u32, longest: u32) -> PictureRule {
    let patches = patches(side, limit(longest, u32::MAX), Shrinking::Largest);
    let cost = PictureCost::Patches(Patches { row_end: 1, ..patches });
    PictureRule { cost, page: PageCost::Unknown }
}

const fn qwen(side: u32, most: u32) -> PictureRule {
    let cost = PictureCost::Patches(patches(side, limit(u32::MAX, most), Shrinking::Largest));
    PictureRule { cost, page: PageCost::Unknown }
}

/// Fits into 512 by 512 pixels.
const LOW: PictureLimit = limit(512, 256);
const HIGH: PictureLimit = limit(2_048, 2_500);
/// As it is, up to 6,000 pixels; from GPT-5.6 on, up to the size that is refused.
const ORIGINAL: PictureLimit = limit(6_000, 10_000);
const AS_IT_IS: PictureLimit = limit(65_535, 30_000);
const HIGH_OF_6: PictureLimit = limit(65_535, 2_500);
/// One limit for every detail, of models without `original`.
const ONE: [PictureLimit; 4] = [limit(2_048, 6_144); 4];
/// The same, as earlier versions of the guide say of models that the current one does not list.
const EARLIER: [PictureLimit; 4] = [limit(2_048, 1_536); 4];

const GPT_5_4: PictureRule = openai(1.2, [limit(2_048, 6_144), HIGH, ORIGINAL, HIGH]);
const GPT_5_5: PictureRule = openai(1.2, [LOW, HIGH, ORIGINAL, ORIGINAL]);
const GPT_5_6: PictureRule = openai(1.2, [LOW, HIGH, AS_IT_IS, AS_IT_IS]);
const GPT_6: PictureRule = openai(1.2, [LOW, HIGH_OF_6, AS_IT_IS, AS_IT_IS]);

const CLAUDE: PictureRule = claude(1_568, 1_568, 560);
const CLAUDE_NEW: PictureRule = claude(2_576, 4_784, 780);

const GEMINI_2: PictureRule =
    PictureRule { cost: PictureCost::Crops, page: PageCost::Flat { picture: 258, text: 0 } };
const GEMINI_3: PictureRule = PictureRule { cost: PictureCost::Shape, page: PageCost::Shape };

/// A model about whose pictures nothing is documented: OpenAI's patches, because many imitate its API.
const OTHER: PictureRule = PictureRule { page: PageCost::Unknown, ..openai(1.2, EARLIER) };

/// The rules by the start of a model's name; the longest start that fits decides.
const BY_NAME: &[(&[&str], PictureRule)] = &[
    (&["gpt-6", "gpt-7", "gpt-daybreak"], GPT_6),
    (&["gpt-5."], GPT_5_6),
    (&["gpt-5.5"], GPT_5_5),
    (&["gpt-5.4"], GPT_5_4),
    (&["gpt-5.2"], openai(1.2, ONE)),
    (
        &["gpt-5.3", "gpt-5.2-codex", "gpt-5.2-chat", "gpt-5.1-codex-mini", "gpt-5-codex-mini"],
        openai(1.2, EARLIER),
    ),
    (&["gpt-5-mini"], openai(1.2, EARLIER)),
    (&["gpt-5-nano"], openai(1.5, EARLIER)),
    (&["gpt-4.1-mini"], openai(1.62, ONE)),
    (&["gpt-4.1-nano"], openai(2.46, EARLIER)),
    (&["o4-mini", "codex-mini"], openai(1.72, EARLIER)),
    (&["gpt-5", "gpt-5.1"], tiles(70, 140)),
    (&["gpt-4", "chatgpt-4o"], tiles(85, 170)),
    (&["gpt-4o-mini"], tiles(2_833, 5_667)),
    (&["o1", "o3", "o4"], tiles(75, 150)),
    (&["computer-use"], tiles(65, 129)),
    (&["gemini-1", "gemini-2", "gemma"], GEMINI_2),
    (&["gemini"], GEMINI_3),
    (&["grok"], PictureRule { cost: PictureCost::WholeAndTiles, page: PageCost::Unknown }),
    (&["pixtral"], mistral(16, 1_024)),
    (
        &["mistral-small", "mistral-medium", "mistral-large", "magistral", "ministral"],
        mistral(28, 1_540),
    ),
    (&["qwen-vl", "qwen2-vl", "qwen2.5-vl", "qvq"], qwen(28, 1_280)),
    (&["qwen3-vl", "qwen3.", "qwen4"], qwen(32, 2_560)),
];

impl PictureRule {
    /// The rule for the model with these names.
    pub(super) fn by_name(names: &[String], family: Family) -> Self {
        // The longest start of a name decides, wherever it stands in the table.
        let mut longest = 0;
        let mut best = Self::of_family(family);
        for (starts, rule) in BY_NAME {
            for start in *starts {
                let fits = names.iter().any(|name| name.starts_with(start));
                if fits && start.len() > longest {
                    longest = start.len();
                    best = *rule;
                }
            }
        }
        best
    }

    /// The rule for a model of which only the family is known.
    pub(super) fn of_family(family: Family) -> Self {
        match family {
            Family::Claude => CLAUDE,
            Family::ClaudeNew => CLAUDE_NEW,
            Family::Gemini => GEMINI_3,
            Family::O200k => GPT_6,
            Family::Cl100k => tiles(85, 170),
            Family::Other => OTHER,
        }
    }
}

impl Default for PictureRule {
    fn default() -> Self {
        OTHER
    }
}
