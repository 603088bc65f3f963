//! Pictures that do not compress: their size in bytes grows with their pixels, so that limits of bytes can be reached.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};

/// The base64 of a PNG of this size; the same for the same seed.
pub fn noise(width: u32, height: u32, seed: u32) -> String {
    let mut state = seed;
    let noise = RgbImage::from_fn(width, height, |_, _| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let [_, r, g, b] = state.to_le_bytes();
        Rgb([r, g, b])
    });
    let mut file = Cursor::new(Vec::new());
    DynamicImage::ImageRgb8(noise).write_to(&mut file, ImageFormat::Png).unwrap();
    STANDARD.encode(file.into_inner())
}
