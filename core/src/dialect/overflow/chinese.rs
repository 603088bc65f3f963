//! Chinese messages in the words of the English grammar: 输入长度超过模型限制 becomes "input length exceeds limit".
//!
//! Both languages say these things in the same order, so that a list of words is enough. Pure.

use std::borrow::Cow;

/// Words of refusals, those first that begin with another one. What else is said becomes blank.
const WORDS: [(&str, &str); 66] = [
    ("上下文", "context length"),
    ("提示词", "prompt"),
    ("提示詞", "prompt"),
    ("输入", "input"),
    ("輸入", "input"),
    ("对话", "conversation"),
    ("對話", "conversation"),
    ("会话", "conversation"),
    ("历史", "history"),
    ("歷史", "history"),
    ("消息", "messages"),
    ("请求", "requested"),
    ("請求", "requested"),
    ("实际", "current"),
    ("当前", "current"),
    ("當前", "current"),
    ("输出", "output"),
    ("輸出", "output"),
    ("生成", "output"),
    ("补全", "completion"),
    ("每分钟", "per minute"),
    ("流控", "rate limit"),
    ("限流", "rate limit"),
    ("频率", "rate limit"),
    ("并发", "rate limit"),
    ("速率", "rate limit"),
    ("访问量", "requests"),
    ("额度", "quota"),
    ("配额", "quota"),
    ("余额", "quota"),
    ("令牌", "token"),
    ("词元", "token"),
    ("字数太多", "too long"),
    ("字符", "characters"),
    ("图片", "image"),
    ("图像", "image"),
    ("音频", "audio"),
    ("视频", "video"),
    ("文件", "file"),
    ("文档", "document"),
    ("工具", "tool"),
    ("函数", "function"),
    ("超时", "timeout"),
    ("超长", "too long"),
    ("超長", "too long"),
    ("过长", "too long"),
    ("過長", "too long"),
    ("太长", "too long"),
    ("过大", "too large"),
    ("不能超过", "must not"),
    ("不得超过", "must not"),
    ("不超过", "must not"),
    ("应小于", "must"),
    ("超限", "exceeds limit"),
    ("超过", "exceeds"),
    ("超過", "exceeds"),
    ("超出", "exceeds"),
    ("大于", "greater"),
    ("达到", "reached"),
    ("长度", "length"),
    ("長度", "length"),
    ("窗口", "window"),
    ("最大", "maximum"),
    ("最多", "maximum"),
    ("上限", "limit"),
    ("限制", "limit"),
];

/// The text in lower case, with Chinese words and signs in English.
pub(super) fn translated(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_chinese) {
        return Cow::Borrowed(text);
    }
    let mut english_text = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = WORDS.iter().find(|(chinese, _)| rest.starts_with(chinese));
        if let Some((chinese, english)) = word {
            english_text.extend([" ", english, " "]);
            rest = &rest[chinese.len()..];
            continue;
        }
        match first {
            '。' | '；' | '！' | '？' => english_text.push_str(". "),
            '（' => english_text.push('('),
            '）' => english_text.push(')'),
            '，' | '、' => english_text.push(','),
            '：' => english_text.push(':'),
            first if is_chinese(first) => english_text.push(' '),
            first => english_text.push(first),
        }
        rest = &rest[first.len_utf8()..];
    }
    Cow::Owned(english_text)
}

fn is_chinese(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        translated(text).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn chinese_is_read_like_english() {
        assert_eq!(read("输入长度超过模型限制。"), "input length exceeds limit .");
        assert_eq!(read("共233781个token（最大202752）"), "233781 token( maximum 202752)");
        assert_eq!(read("请求超时"), "requested timeout");
        assert_eq!(translated("Prompt is too long。"), "Prompt is too long。");
    }

    /// A word that begins like a later one would hide it.
    #[test]
    fn longer_words_come_first() {
        for (index, (word, _)) in WORDS.iter().enumerate() {
            let mut earlier = WORDS[..index].iter();
            assert!(!earlier.any(|(other, _)| word.starts_with(other)), "{word}");
        }
    }
}
