// What the admin API has to know after a conversation.

export const sessions = async () => new Set();
export async function check() {}
